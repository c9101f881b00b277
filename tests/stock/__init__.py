"""Stock pipelines under management: tiny, random, drawn bit for bit as without Tenure."""
