-- A place in the order of migrations, until the branch that owns it is merged.
SELECT 1;
