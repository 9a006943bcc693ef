"""Stands in for mooncake-transfer-engine in tests: the same calls, real bytes over a TCP socket, nothing else."""
