"""Pipelines: pure operators over one ordered row, whose outputs leave at once, in order and exactly once.

graph       a user's declaration, validated; its plan is in `plan`, an operator in `operators`
cores       operators at work: frames in, frames out, no await and no clock; in `core`, `window` and `event_time`
            states are in `states`, and `undo` takes back what a refused record has changed
state_types fields of a state of which only changes are saved; `state_fields` and `changes` have how they are stored
barrier     outputs on their way out, as bundles, and the comparison with what lies there
checkpoint  the register, and the parts of the states that it names
tasks       the operators of one replica at work together: frames in, the sinks' frames out, states saved and asked
workers     the same in processes of their own; `worker` is one, `exchange` what goes between, `grouping` its order
replica     one replica: its beginning, its turns, releases and checkpoints
running     replicas in this process, paced, asked and stopped
"""

from outbox.streams.pipeline import release

__all__ = ["release"]
