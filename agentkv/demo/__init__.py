"""`agentkv demo`: a day of an agent over real documents, measured three ways in the same run."""
