//! What of a stream's or a file's messages belongs to the columns that are read: buffers of the others stay compressed where they lie, and
//! their dictionaries are passed over.
//!
//! Source: the format's Columnar.rst, "Buffer Listing for Each Layout".

use arrow_ipc::Field;
use arrow_schema::{DataType, Schema};
use std::collections::HashSet;

/// The types of a schema's columns, and whether each is read.
#[derive(Debug)]
pub(super) struct Wanted {
    columns: Vec<(DataType, bool)>,
    /// Dictionaries of those that are read; `None`: all.
    shared: Option<HashSet<i64>>,
}

impl Wanted {
    /// These columns.
    pub(super) fn new(schema: &Schema, columns: &[usize]) -> Self {
        let read: HashSet<usize> = columns.iter().copied().collect();
        let fields = schema.fields().iter().enumerate();
        let columns = fields.map(|(at, field)| (field.data_type().clone(), read.contains(&at))).collect();
        Self { columns, shared: None }
    }

    /// Of what batches share only what these columns have, whose schema has these fields in the format's own words.
    pub(super) fn sharing<'a>(mut self, fields: impl Iterator<Item = Field<'a>>) -> Self {
        let mut shared = HashSet::new();
        let read = fields.zip(&self.columns).filter(|(_, (_, is_read))| *is_read);
        read.for_each(|(field, _)| dictionaries(field, &mut shared));
        self.shared = Some(shared);
        self
    }

    /// Whether a dictionary is read.
    pub(super) fn shares(&self, dictionary: i64) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.contains(&dictionary))
    }

    /// Whether each of a batch's buffers is read. `None`: they are not those of such columns, or nobody knows. `views` are the
    /// numbers of buffers behind each column of views.
    pub(super) fn buffers(&self, count: usize, mut views: impl Iterator<Item = i64>) -> Option<Vec<bool>> {
        let mut all = Vec::new();
        for (kind, is_read) in &self.columns {
            let own = buffers(kind, &mut views)?;
            all.resize(all.len().checked_add(own).filter(|end| *end <= count)?, *is_read);
        }
        (all.len() == count).then_some(all)
    }
}

/// The dictionaries of a column, and of what lies in it.
fn dictionaries(field: Field<'_>, found: &mut HashSet<i64>) {
    found.extend(field.dictionary().map(|own| own.id()));
    field.children().into_iter().flatten().for_each(|inner| dictionaries(inner, found));
}

/// How many buffers a column has.
fn buffers(kind: &DataType, views: &mut dyn Iterator<Item = i64>) -> Option<usize> {
    use DataType as D;
    Some(match kind {
        D::Null => 0,
        D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary => 3,
        D::Utf8View | D::BinaryView => usize::try_from(views.next()?).ok()?.checked_add(2)?,
        D::List(of) | D::LargeList(of) | D::Map(of, _) => 2 + buffers(of.data_type(), views)?,
        D::FixedSizeList(of, _) => 1 + buffers(of.data_type(), views)?,
        D::Struct(of) => of.iter().try_fold(1, |sum, field| Some(sum + buffers(field.data_type(), views)?))?,
        D::ListView(_) | D::LargeListView(_) | D::Union(..) | D::RunEndEncoded(..) => return None,
        // Which are null, and a value or a key each.
        _ => 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{Field, Fields, UnionFields, UnionMode};

    #[test]
    fn every_column_is_told_from_those_beside_it() {
        let field = |name: &str, kind: DataType| Field::new(name, kind, true);
        let of = |kind| field("item", kind).into();
        let kinds = [
            DataType::Float64,
            DataType::Utf8View,
            DataType::Null,
            DataType::List(of(DataType::Utf8)),
            DataType::Struct(Fields::from(vec![field("a", DataType::Boolean), field("b", DataType::Utf8View)])),
            DataType::FixedSizeList(of(DataType::Int8), 2),
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        ];
        let schema = Schema::new(kinds.into_iter().map(|kind| field("c", kind)).collect::<Vec<_>>());
        // Two, one of views and two; none; five; one, two and none of views; three; two.
        let count = 2 + 3 + 5 + 1 + 2 + 2 + 3 + 2;
        for (column, at) in [(0, 0..2), (1, 2..5), (2, 5..5), (3, 5..10), (4, 10..15), (5, 15..18), (6, 18..20)] {
            let found = Wanted::new(&schema, &[column]).buffers(count, [1, 0].into_iter()).unwrap();
            assert!((0..count).all(|buffer| found[buffer] == at.contains(&buffer)), "{column}: {found:?}");
        }
        let all = Wanted::new(&schema, &[0]);
        for (count, views) in [(count - 1, [1, 0]), (count + 1, [1, 0]), (count, [1, 1]), (count, [-1, 2])] {
            assert_eq!(all.buffers(count, views.into_iter()), None);
        }
        assert_eq!(all.buffers(count, [1].into_iter()), None);
        let union = DataType::Union(UnionFields::empty(), UnionMode::Sparse);
        assert_eq!(Wanted::new(&Schema::new(vec![field("c", union)]), &[0]).buffers(1, [].into_iter()), None);
    }
}
