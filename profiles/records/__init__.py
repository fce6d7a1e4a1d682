"""profiles/records"""
