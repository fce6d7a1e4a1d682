"""compiler/patterns/recommendation"""
