"""vLLM servers with a starspec hub beside vLLM's own ways of drafting: real servers, each in vLLM's own environment."""
