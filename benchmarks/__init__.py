"""What `make bench` measures and publishes to docs/benchmarks, beside what `outbox_bench` measures."""
