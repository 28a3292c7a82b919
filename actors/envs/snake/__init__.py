"""Snake: many boards, stepped by array operations."""
