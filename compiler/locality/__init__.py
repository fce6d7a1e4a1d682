"""compiler/locality"""
