"""What a target in stages over slow links gains from drafts, and from windows in flight."""
