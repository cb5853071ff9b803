"""Grammars of answers, by llguidance: compiled under limits, and followed token by token."""
