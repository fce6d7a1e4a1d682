"""profiles/runtime"""
