"""reposync keeps source code from GitLab searchable in the Qdrant vector database."""

__version__ = "0.2.1"
