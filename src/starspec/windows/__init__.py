"""What a target verifies in one forward, and who decides it: windows, judges and verdicts."""
