"""A stand-in for Azure's devtools_testutils, of which the tests of azure-cosmos import two names."""
