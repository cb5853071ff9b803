"""How far to speculate: every length policy beside every fixed length, on synthetic accelerators or a real pair."""
