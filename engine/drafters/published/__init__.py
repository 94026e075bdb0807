"""Draft heads that others have trained and published, in the layouts of their authors."""
