"""The only code that looks at the machine; returns Evidence or raises ProbeError. Never judges."""
