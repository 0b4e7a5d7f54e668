"""A model in several parts, some here and some on servers: one stage each, and what plays a text through them."""
