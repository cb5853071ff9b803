"""EAGLE heads: their files, their layouts, their one decoder layer."""
