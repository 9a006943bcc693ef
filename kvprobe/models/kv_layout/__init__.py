"""From a model's configuration to the bytes of its KV cache, one module per family of caches."""
