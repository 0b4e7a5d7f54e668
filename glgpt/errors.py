"""The one exception a user's mistake raises."""


class GlgptError(ValueError):
    """Bad input: a file, an option, an id or a device that cannot serve.

    The message is one line: what was wrong, where, and what to do. The command line prints it and exits with 2.
    """
