"""One budget for many runs with no server: vouchers claimed by exclusive create on a shared store."""

from costguard.pots.credit import Credit, Grant
from costguard.pots.pot import Pot
from costguard.pots.status import Holder, PotStatus, Raised
from costguard.pots.sweeper import Swept

__all__ = ["Credit", "Grant", "Holder", "Pot", "PotStatus", "Raised", "Swept"]
