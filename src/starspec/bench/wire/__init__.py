"""What drafting for others costs beside the drafting itself: real processes and sockets, synthetic accelerators."""
