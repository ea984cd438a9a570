"""Its place puts this folder on the import path (pytest's `prepend` mode), so that tests can `import builders`."""
