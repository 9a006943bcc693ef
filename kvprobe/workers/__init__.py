"""Own processes: the only importers of torch, nixl, ucxx, pynvml and mooncake. Started by probes, imported by nobody."""
