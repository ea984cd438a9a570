"""What a unit costs, from when to when, and who says so."""

from costguard.prices.book import Price, PriceBook, Rate
from costguard.prices.storage import StorageClass

__all__ = ["Price", "PriceBook", "Rate", "StorageClass"]
