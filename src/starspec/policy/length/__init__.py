"""How far to speculate: policies are pure functions of a snapshot."""
