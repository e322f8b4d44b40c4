"""The tools of the Model Context Protocol (MCP), by which agents search, and the official SDK's server around them.

`reposync mcp` serves it on stdin and stdout, the daemon at `/mcp`. Neither keeps anything between two calls.
"""
