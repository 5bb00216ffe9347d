-- A placeholder: another branch has this number.
SELECT 1;
