"""`python -m reposync.vectors.engine`: the child process of the embedded engine."""

from reposync.vectors.engine.process import main

main()
