"""kvprobe tells, with measured numbers, whether P/D disaggregation of vLLM will pay on this hardware."""

__version__ = "0.1.0"

__all__ = ["__version__"]
