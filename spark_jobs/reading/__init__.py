"""Files to rows: a strict grammar for CSV, JSON lines and Parquet, run by tasks over ranges of bytes."""
