"""What `outbox bench` measures, and the wheel carries: W1 here, or the Azure adapters on an account of one's own.

It imports nothing but the library, the SDKs and itself.  `benchmarks/` has what only a checkout measures.
"""
