"""`make demo-azure`: the job of `make demo` through the real Azure SDKs and Functions hosts, under faults and kills."""
