"""Its place puts this folder on the import path (pytest's `prepend` mode), so that tests can `import builders`.

The real S3 server of `servers` is there for every folder of tests.
"""

from servers import seaweed, seaweed_url

__all__ = ["seaweed", "seaweed_url"]
