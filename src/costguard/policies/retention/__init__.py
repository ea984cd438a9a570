"""What becomes of a run's checkpoints: what is wanted, the plan, whether a move pays, and where it all will end."""

from costguard.policies.retention.decision import Decision, Move, Tiers
from costguard.policies.retention.planning import plan
from costguard.policies.retention.projection import Projection, SavePlan, project
from costguard.policies.retention.wanted import FOR_EVER_NS, Retention, quota_within

__all__ = [
    "FOR_EVER_NS",
    "Decision",
    "Move",
    "Projection",
    "Retention",
    "SavePlan",
    "Tiers",
    "plan",
    "project",
    "quota_within",
]
