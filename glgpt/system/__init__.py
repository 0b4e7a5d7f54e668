"""What the operating system gives: package data, caches, writing whole files, signals. Knows no model and no GL."""
