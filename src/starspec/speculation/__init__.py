"""Pure mathematics of speculation: draft trees and budgets, proposals, acceptance rules. No model, no I/O."""
