"""compiler/patterns/sequence"""
