"""A simulator of a P/D deployment for tests: real sockets and real HTTP, but no model, no GPU and no vLLM."""
