"""What conventions are called to the user."""

from __future__ import annotations

from collections.abc import Mapping

NAMES: Mapping[str, str] = {"full_attention": "full attention", "causal": "causal", "6nd": "6ND"}
