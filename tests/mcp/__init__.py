"""Tests of `McpServer` against the tests' own servers of both protocol versions, and against faulty servers."""
