"""Checks of the templates in infra/ and of all that has to agree with them, without a Bicep compiler or Azure.

    python -m tools.infra_check

Syntax by a grammar; names, modules and parameters as the compiler would look at them; every property against the models
that Microsoft publishes for the pinned API version; and queues, containers, settings and rights against the code.  What
it cannot tell is whether Azure accepts a deployment: quotas, regions and rules that stand in no model.
"""
