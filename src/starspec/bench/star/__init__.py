"""`starspec bench star` and `async`: one hub and its targets, each a process of its own, over real sockets."""
