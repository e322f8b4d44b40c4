"""Who asks, and what GitLab lets them see."""
