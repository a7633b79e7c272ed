//! Values as JSON that comes back as it was.
//!
//! JSON has no word for `NaN` and the infinities. serde_json writes `null` for them, which is something else when it is read: a
//! job that cannot decode its input, or a `None` that nobody recorded. Here they are an error instead, which names the
//! field. They are noticed while the value is written: there is no second pass.
//!
//! Whether a type reads what it writes takes that second pass. Tests make it, with [`come_back`].

mod place;

use std::fmt::Display;

use serde::de::{DeserializeOwned, Error as _};
use serde::ser::{
    Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant, SerializeTuple,
    SerializeTupleStruct, SerializeTupleVariant, Serializer,
};

/// A value as JSON.
///
/// # Errors
/// What serde_json says; and a number that is not finite, with the path of its field.
pub(crate) fn to_vec(value: &(impl Serialize + ?Sized)) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Finite(value)).map_err(|error| {
        // What is wrong as a whole has no path.
        if error.to_string().starts_with([' ', '.', '[']) { at("value")(error) } else { error }
    })
}

/// Whether what was written can be read as this type.
///
/// # Errors
/// What serde_json says, with the path of the field.
pub(crate) fn come_back<T: DeserializeOwned>(json: &[u8]) -> serde_json::Result<()> {
    serde_json::from_slice::<T>(json).map(drop).map_err(|error| {
        let place = place::find(json, error.column());
        serde_json::Error::custom(format_args!("{place} cannot be read as it is written: {error}"))
    })
}

/// A value all of whose numbers have to be finite; or a serializer that demands it.
struct Finite<T>(T);

impl<T: Serialize + ?Sized> Serialize for Finite<&T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(Finite(serializer))
    }
}

fn number<E: serde::ser::Error>(value: f64) -> Result<(), E> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(E::custom(format_args!(" is {value}, which JSON cannot hold")))
    }
}

/// Puts where it went wrong in front of what went wrong.
fn at<E: serde::ser::Error>(place: impl Display) -> impl FnOnce(E) -> E {
    move |error| {
        let text = error.to_string();
        let gap = if text.starts_with([' ', '.', '[']) { "" } else { ": " };
        E::custom(format_args!("{place}{gap}{text}"))
    }
}

/// The elements of something, some of which have gone by.
struct Elements<C> {
    inner: C,
    index: usize,
}

impl<C> Elements<C> {
    fn new(inner: C) -> Self {
        Elements { inner, index: 0 }
    }

    fn next<E: serde::ser::Error>(&mut self, write: impl FnOnce(&mut C) -> Result<(), E>) -> Result<(), E> {
        let index = self.index;
        self.index += 1;
        write(&mut self.inner).map_err(|error| at(format_args!("[{index}]"))(error))
    }
}

/// What is written as it is.
macro_rules! plain {
    ($($method:ident: $type:ty),* $(,)?) => {
        $(fn $method(self, value: $type) -> Result<S::Ok, S::Error> {
            self.0.$method(value)
        })*
    };
}

impl<S: Serializer> Serializer for Finite<S> {
    type Ok = S::Ok;
    type Error = S::Error;
    type SerializeSeq = Elements<S::SerializeSeq>;
    type SerializeTuple = Elements<S::SerializeTuple>;
    type SerializeTupleStruct = Elements<S::SerializeTupleStruct>;
    type SerializeTupleVariant = Elements<S::SerializeTupleVariant>;
    type SerializeMap = Elements<S::SerializeMap>;
    type SerializeStruct = Finite<S::SerializeStruct>;
    type SerializeStructVariant = Finite<S::SerializeStructVariant>;

    plain! {
        serialize_bool: bool, serialize_char: char, serialize_str: &str, serialize_bytes: &[u8],
        serialize_i8: i8, serialize_i16: i16, serialize_i32: i32, serialize_i64: i64, serialize_i128: i128,
        serialize_u8: u8, serialize_u16: u16, serialize_u32: u32, serialize_u64: u64, serialize_u128: u128,
        serialize_unit_struct: &'static str,
    }

    fn serialize_f32(self, value: f32) -> Result<S::Ok, S::Error> {
        number(f64::from(value))?;
        self.0.serialize_f32(value)
    }

    fn serialize_f64(self, value: f64) -> Result<S::Ok, S::Error> {
        number(value)?;
        self.0.serialize_f64(value)
    }

    fn serialize_none(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_none()
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.serialize_some(&Finite(value))
    }

    fn serialize_unit(self) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit()
    }

    fn serialize_unit_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_unit_variant(name, index, variant)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        self.0.serialize_newtype_struct(name, &Finite(value))
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        value: &T,
    ) -> Result<S::Ok, S::Error> {
        let written = self.0.serialize_newtype_variant(name, index, variant, &Finite(value));
        written.map_err(|error| at(format_args!(".{variant}"))(error))
    }

    fn serialize_seq(self, len: Option<usize>) -> Result<Self::SerializeSeq, S::Error> {
        self.0.serialize_seq(len).map(Elements::new)
    }

    fn serialize_tuple(self, len: usize) -> Result<Self::SerializeTuple, S::Error> {
        self.0.serialize_tuple(len).map(Elements::new)
    }

    fn serialize_tuple_struct(
        self,
        name: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleStruct, S::Error> {
        self.0.serialize_tuple_struct(name, len).map(Elements::new)
    }

    fn serialize_tuple_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeTupleVariant, S::Error> {
        self.0.serialize_tuple_variant(name, index, variant, len).map(Elements::new)
    }

    fn serialize_map(self, len: Option<usize>) -> Result<Self::SerializeMap, S::Error> {
        self.0.serialize_map(len).map(Elements::new)
    }

    fn serialize_struct(self, name: &'static str, len: usize) -> Result<Self::SerializeStruct, S::Error> {
        self.0.serialize_struct(name, len).map(Finite)
    }

    fn serialize_struct_variant(
        self,
        name: &'static str,
        index: u32,
        variant: &'static str,
        len: usize,
    ) -> Result<Self::SerializeStructVariant, S::Error> {
        self.0.serialize_struct_variant(name, index, variant, len).map(Finite)
    }

    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<S::Ok, S::Error> {
        self.0.collect_str(value)
    }

    fn is_human_readable(&self) -> bool {
        self.0.is_human_readable()
    }
}

/// Sequences of some kind.
macro_rules! elements {
    ($($kind:ident::$method:ident),* $(,)?) => {
        $(impl<C: $kind> $kind for Elements<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
                self.next(|inner| inner.$method(&Finite(value)))
            }

            fn end(self) -> Result<C::Ok, C::Error> {
                self.inner.end()
            }
        })*
    };
}

elements! {
    SerializeSeq::serialize_element,
    SerializeTuple::serialize_element,
    SerializeTupleStruct::serialize_field,
    SerializeTupleVariant::serialize_field,
}

impl<C: SerializeMap> SerializeMap for Elements<C> {
    type Ok = C::Ok;
    type Error = C::Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), C::Error> {
        self.inner.serialize_key(key)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), C::Error> {
        self.next(|inner| inner.serialize_value(&Finite(value)))
    }

    fn serialize_entry<K: Serialize + ?Sized, T: Serialize + ?Sized>(
        &mut self,
        key: &K,
        value: &T,
    ) -> Result<(), C::Error> {
        // Only where it went wrong is the key looked at.
        self.inner.serialize_entry(key, &Finite(value)).map_err(|error| match serde_json::to_value(key) {
            Ok(serde_json::Value::String(key)) => at(format_args!(".{key}"))(error),
            Ok(key) => at(format_args!("[{key}]"))(error),
            Err(_) => error,
        })
    }

    fn end(self) -> Result<C::Ok, C::Error> {
        self.inner.end()
    }
}

/// Structs of some kind.
macro_rules! fields {
    ($($kind:ident),* $(,)?) => {
        $(impl<C: $kind> $kind for Finite<C> {
            type Ok = C::Ok;
            type Error = C::Error;

            fn serialize_field<T: Serialize + ?Sized>(
                &mut self,
                key: &'static str,
                value: &T,
            ) -> Result<(), C::Error> {
                let written = self.0.serialize_field(key, &Finite(value));
                written.map_err(|error| at(format_args!(".{key}"))(error))
            }

            fn skip_field(&mut self, key: &'static str) -> Result<(), C::Error> {
                self.0.skip_field(key)
            }

            fn end(self) -> Result<C::Ok, C::Error> {
                self.0.end()
            }
        })*
    };
}

fields! { SerializeStruct, SerializeStructVariant }

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Serialize;

    use super::*;

    #[derive(Serialize)]
    enum Shape {
        Point,
        Circle(f32),
        Line(f64, f64),
        Text { size: Option<f64>, words: &'static str },
    }

    #[derive(Serialize)]
    struct Page {
        shapes: Vec<Shape>,
        weights: BTreeMap<String, f64>,
        raw: Box<serde_json::value::RawValue>,
        more: (i8, u64, Option<()>, char, [u8; 2]),
    }

    fn page(shapes: Vec<Shape>, weight: f64) -> Page {
        let raw = serde_json::value::RawValue::from_string("{\"a\": 1.50}".into()).expect("JSON");
        Page {
            shapes,
            weights: [("a b".into(), weight)].into(),
            raw,
            more: (-1, u64::MAX, None, 'c', [1, 2]),
        }
    }

    #[test]
    fn what_is_finite_is_written_as_serde_json_writes_it() {
        let text = Shape::Text { size: Some(1e300), words: "a" };
        let page = page(vec![Shape::Point, Shape::Circle(0.1), Shape::Line(-0.0, f64::MAX), text], 1.0);
        let expected = serde_json::to_vec(&page).expect("JSON");
        assert_eq!(to_vec(&page).expect("JSON"), expected);
        assert_eq!(to_vec(&u128::MAX).expect("JSON"), u128::MAX.to_string().into_bytes());
        assert_eq!(to_vec(&serde_json::json!({"a": [null, 1.5]})).expect("JSON"), br#"{"a":[null,1.5]}"#);
    }

    #[test]
    fn a_number_that_is_not_finite_is_refused_by_the_name_of_its_field() {
        let refused =
            |value: &dyn Fn() -> serde_json::Result<Vec<u8>>| value().expect_err("refused").to_string();
        assert_eq!(refused(&|| to_vec(&f64::NAN)), "value is NaN, which JSON cannot hold");
        let circle = || to_vec(&page(vec![Shape::Point, Shape::Circle(f32::INFINITY)], 0.0));
        assert_eq!(refused(&circle), "value.shapes[1].Circle is inf, which JSON cannot hold");
        let line = || to_vec(&page(vec![Shape::Line(0.0, f64::NAN)], 0.0));
        assert_eq!(refused(&line), "value.shapes[0][1] is NaN, which JSON cannot hold");
        let text = || to_vec(&page(vec![Shape::Text { size: Some(f64::NEG_INFINITY), words: "" }], 0.0));
        assert_eq!(refused(&text), "value.shapes[0].size is -inf, which JSON cannot hold");
        assert_eq!(
            refused(&|| to_vec(&page(Vec::new(), f64::NAN))),
            "value.weights.a b is NaN, which JSON cannot hold"
        );
        let keys = || to_vec(&(1, BTreeMap::from([((1, 2), 3)])));
        assert_eq!(refused(&keys), "value[1][[1,2]]: key must be a string");
    }
}
