"""profiles/artifact"""
