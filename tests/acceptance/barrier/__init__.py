"""AgentBarrier's scenarios against a real worker, a real web process and people at its pages."""
