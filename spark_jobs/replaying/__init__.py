"""A pipeline's operators on Spark: a job is a replica that catches up fast."""
